# What `cmake --install` puts where, by component:
#
#   devel   headers, core library, and the files by which find_package(stowage) defines stowage::stowage
#   bin     the command line
#   python  the Python package (python/CMakeLists.txt); wheels hold this one and the command line within it
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/stowage)

set_target_properties(stowage_core PROPERTIES EXPORT_NAME stowage)
install(TARGETS stowage_core EXPORT stowageTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT devel
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT devel)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/stowage DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT devel)
install(EXPORT stowageTargets NAMESPACE stowage:: DESTINATION ${config_dir} COMPONENT devel)

# A static core leaves the libraries it uses to the program that links it.
set(STOWAGE_NEEDS "")
if(NOT STOWAGE_SHARED)
  string(APPEND STOWAGE_NEEDS "find_dependency(ZLIB)\nfind_dependency(OpenSSL COMPONENTS Crypto)\n")
  if(NOT STOWAGE_SIMDJSON_SOURCE)
    string(APPEND STOWAGE_NEEDS "find_dependency(simdjson)\n")
  endif()
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/stowageConfig.cmake.in ${CMAKE_BINARY_DIR}/stowageConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/stowageConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/stowageConfig.cmake ${CMAKE_BINARY_DIR}/stowageConfigVersion.cmake
  DESTINATION ${config_dir} COMPONENT devel)
