# Decides which of the optional parts are built:
#   STOWAGE_BUILD_PYTHON   python/CMakeLists.txt exists and nanobind is installed for Python_EXECUTABLE
#   STOWAGE_BUILD_RUNTIME  runtime/CMakeLists.txt exists and torch is installed for it; STOWAGE_TORCH_DIR is its package folder
# Besides, STOWAGE_HIGHSPY_DIR is the package folder of highspy, or empty: where programs run from the build tree look for HiGHS first.
# Packages are located by find_spec, without importing them (importing torch takes seconds). AUTO leaves out what is missing,
# ON makes it an error.
set(STOWAGE_BUILD_PYTHON OFF)
set(STOWAGE_BUILD_RUNTIME OFF)
set(STOWAGE_TORCH_DIR "")
set(STOWAGE_HIGHSPY_DIR "")

function(stowage_package_dir package result)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as u, os; s = u.find_spec('${package}'); print(os.path.dirname(s.origin) if s and s.origin else '')"
    OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${result} "${dir}" PARENT_SCOPE)
endfunction()

# Sets `result` from what the user asked for and what is there.
function(stowage_decide option wanted available reason result)
  if(wanted STREQUAL "ON" AND NOT available)
    message(FATAL_ERROR "${option}=ON, but ${reason}")
  endif()
  if(available AND NOT wanted STREQUAL "OFF")
    set(${result} ON PARENT_SCOPE)
  else()
    set(${result} OFF PARENT_SCOPE)
    message(STATUS "${option}=${wanted}: left out")
  endif()
endfunction()

set(_python_there OFF)
set(_torch_there OFF)
if(NOT (STOWAGE_PYTHON STREQUAL "OFF" AND STOWAGE_TORCH STREQUAL "OFF"))
  set(Python_FIND_VIRTUALENV FIRST)
  find_package(Python 3.10 COMPONENTS Interpreter Development.Module QUIET)
  if(Python_FOUND)
    stowage_package_dir(nanobind _nanobind_dir)
    if(_nanobind_dir AND EXISTS ${CMAKE_SOURCE_DIR}/python/CMakeLists.txt)
      set(_python_there ON)
      list(APPEND CMAKE_PREFIX_PATH "${_nanobind_dir}/cmake")
    endif()
    stowage_package_dir(highspy STOWAGE_HIGHSPY_DIR)
    stowage_package_dir(torch STOWAGE_TORCH_DIR)
    if(STOWAGE_TORCH_DIR AND EXISTS ${CMAKE_SOURCE_DIR}/runtime/CMakeLists.txt)
      set(_torch_there ON)
    endif()
  endif()
endif()
stowage_decide(STOWAGE_PYTHON "${STOWAGE_PYTHON}" ${_python_there} "Python with nanobind was not found" STOWAGE_BUILD_PYTHON)
stowage_decide(STOWAGE_TORCH "${STOWAGE_TORCH}" ${_torch_there} "torch was not found (try `pip install torch`)"
  STOWAGE_BUILD_RUNTIME)
