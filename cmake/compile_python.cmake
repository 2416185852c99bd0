# The modules that are compiled, and an extension for each.
file(GLOB OCTAVO_COMPILED CONFIGURE_DEPENDS RELATIVE "${CMAKE_SOURCE_DIR}"
  src/octavo/schedule/[a-z]*.py)
# Values are Structs, whose classes are made as they stand.
list(FILTER OCTAVO_COMPILED EXCLUDE REGEX "/(plan|step_view)\\.py$")
list(APPEND OCTAVO_COMPILED
  src/octavo/memory/keys.py src/octavo/memory/layout.py src/octavo/memory/misses.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${OCTAVO_COMPILED} cmake/compile_python.py pyproject.toml)
set(OCTAVO_TRANSLATED "${CMAKE_BINARY_DIR}/compiled")
execute_process(
  COMMAND "${Python_EXECUTABLE}" cmake/compile_python.py
    "${OCTAVO_TRANSLATED}" octavo_schedule ${OCTAVO_COMPILED}
  WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}"
  OUTPUT_VARIABLE OCTAVO_EXTENSIONS
  OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE ";" "|" OCTAVO_EXTENSIONS "${OCTAVO_EXTENSIONS}")
string(REPLACE "\n" ";" OCTAVO_EXTENSIONS "${OCTAVO_EXTENSIONS}")
foreach(EXTENSION IN LISTS OCTAVO_EXTENSIONS)
  string(REPLACE "|" ";" SOURCES "${EXTENSION}")
  list(POP_FRONT SOURCES NAME HEADERS)
  string(REPLACE "." "/" DESTINATION "${NAME}")
  cmake_path(GET DESTINATION FILENAME OUTPUT)
  cmake_path(GET DESTINATION PARENT_PATH DESTINATION)
  Python_add_library("${NAME}" MODULE WITH_SOABI ${SOURCES})
  set_target_properties("${NAME}" PROPERTIES OUTPUT_NAME "${OUTPUT}")
  target_include_directories("${NAME}" PRIVATE "${OCTAVO_TRANSLATED}" "${HEADERS}")
  # Not ours to warn about.
  target_compile_options("${NAME}" PRIVATE -O2 -w)
  install(TARGETS "${NAME}" LIBRARY DESTINATION "./${DESTINATION}")
endforeach()
