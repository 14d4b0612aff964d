# simdjson, from one of two places:
#
#   the system's library        developer builds. Debian has only the shared one, libsimdjson.so.14, which other machines lack
#   its source, compiled in     wheels, and wherever STOWAGE_SIMDJSON_SOURCE names a folder with simdjson.h and simdjson.cpp
#
# A wheel takes the source from the wheel `pysimdjson`, which carries both files: as a build requirement it is fetched by pip, from
# the user's own index and checked as everything is, so that nothing is downloaded while configuring.
set(STOWAGE_SIMDJSON_SOURCE "" CACHE PATH "Folder of simdjson.h and simdjson.cpp to compile in; empty: the system's library")
if(SKBUILD AND NOT STOWAGE_SIMDJSON_SOURCE)
  stowage_package_dir(simdjson _simdjson_dir)
  if(EXISTS "${_simdjson_dir}/simdjson.cpp")
    set(STOWAGE_SIMDJSON_SOURCE "${_simdjson_dir}")
  endif()
endif()
if(NOT STOWAGE_SIMDJSON_SOURCE)
  find_package(simdjson 3.0 REQUIRED)
endif()

function(stowage_link_simdjson target)
  if(STOWAGE_SIMDJSON_SOURCE)
    set(copy ${CMAKE_BINARY_DIR}/simdjson)  # pip's build environment has another path each time: all would be compiled anew
    configure_file("${STOWAGE_SIMDJSON_SOURCE}/simdjson.h" ${copy}/simdjson.h COPYONLY)
    configure_file("${STOWAGE_SIMDJSON_SOURCE}/simdjson.cpp" ${copy}/simdjson.cpp COPYONLY)
    target_sources(${target} PRIVATE ${copy}/simdjson.cpp)
    set_source_files_properties(${copy}/simdjson.cpp PROPERTIES COMPILE_OPTIONS "-fvisibility=hidden;-w"
      TARGET_DIRECTORY ${target})
    target_include_directories(${target} SYSTEM PRIVATE ${copy})
  else()
    target_link_libraries(${target} PRIVATE simdjson::simdjson)
  endif()
endfunction()
