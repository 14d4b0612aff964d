# What a wheel brings beside the package, so that stowage/_torch/runtime_build.py can build the runtime for the torch that it finds:
#
#   stowage/lib      the core as a shared library, which _core, the command line and the runtime have in common; nanobind
#   stowage/sources  the runtime and its bindings, and the headers they include (but those of torch and Python)
get_target_property(linked _core LINK_LIBRARIES)
list(FILTER linked INCLUDE REGEX "^nanobind")
install(TARGETS stowage_core LIBRARY DESTINATION stowage/lib COMPONENT python)
install(FILES $<TARGET_FILE:${linked}> DESTINATION stowage/lib COMPONENT python)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/stowage ${NB_DIR}/include/nanobind DESTINATION stowage/sources/include COMPONENT python
  PATTERN eigen EXCLUDE PATTERN intrusive EXCLUDE)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/runtime DESTINATION stowage/sources COMPONENT python
  FILES_MATCHING PATTERN *.cpp PATTERN *.h)
file(GLOB binding_headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/bindings/*.h)
install(FILES ${runtime_bindings} ${binding_headers} DESTINATION stowage/sources/bindings COMPONENT python)

# The licences of what is compiled in.
foreach(package_dir ${NB_DIR} ${STOWAGE_SIMDJSON_SOURCE})
  get_filename_component(name ${package_dir} NAME)
  file(GLOB licences ${package_dir}/../*${name}-*.dist-info/LICENSE ${package_dir}/../*${name}-*.dist-info/licenses/LICENSE)
  if(licences)
    list(GET licences 0 licence)
    install(FILES ${licence} DESTINATION stowage/licences RENAME ${name}.txt COMPONENT python)
  endif()
endforeach()
