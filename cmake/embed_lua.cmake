# Writes OUTPUT, a C++ source that holds the Lua files of FILES (separated by |) as strings.
# by their paths below FOLDER, with dots: nn/conv.lua is "nn.conv".
#   cmake -DOUTPUT=lua_sources.cpp -DFOLDER=lua -DFILES=lua/a.lua|lua/b/c.lua -P embed_lua.cmake
cmake_minimum_required(VERSION 3.25)
string(REPLACE "|" ";" files "${FILES}")
set(text "#include \"moonhalo/scripting/core/lua_sources.h\"\n\nnamespace moonhalo::scripting {\n\n")
string(APPEND text "const std::vector<std::pair<std::string_view, std::string_view>>& lua_sources() {\n")
string(APPEND text "  static const std::vector<std::pair<std::string_view, std::string_view>> sources = {\n")
foreach(path IN LISTS files)
  file(RELATIVE_PATH name "${FOLDER}" "${path}")
  string(REGEX REPLACE "\\.lua$" "" name "${name}")
  string(REPLACE "/" "." name "${name}")
  file(READ "${path}" body)
  # Comments of the reference are in the library already (MoonhaloReference.cmake). Lines keep their numbers.
  string(REGEX REPLACE "\n *---[^\n]*" "\n" body "${body}")
  string(FIND "${body}" ")lua~\"" clash)
  if(NOT clash EQUAL -1)
    message(FATAL_ERROR "${path}: contains )lua~\", which ends the C++ string that holds it")
  endif()
  string(APPEND text "      {\"${name}\", R\"lua~(${body})lua~\"},\n")
endforeach()
string(APPEND text "  };\n  return sources;\n}\n\n}  // namespace moonhalo::scripting\n")
file(WRITE "${OUTPUT}" "${text}")
