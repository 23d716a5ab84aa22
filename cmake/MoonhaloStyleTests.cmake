# Tests of the tree itself: its style, its table of features, ./dev, and the first checks of a GPU on scripts in
# place of programs. Read by MoonhaloTests.cmake.
if(Python3_Interpreter_FOUND)
  moonhalo_add_test(NAME style COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/style/check_sources.py"
                              "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME style.features COMMAND Python3::Interpreter
                                       "${PROJECT_SOURCE_DIR}/tests/style/check_features.py" "${PROJECT_SOURCE_DIR}")
  # The versions that formatted the sources (./dev installs them); without them their format is not checked.
  find_program(MOONHALO_CLANG_FORMAT clang-format PATHS "${PROJECT_SOURCE_DIR}/.venv/bin" NO_DEFAULT_PATH)
  find_program(MOONHALO_RUFF ruff PATHS "${PROJECT_SOURCE_DIR}/.venv/bin" NO_DEFAULT_PATH)
  find_program(MOONHALO_CODESPELL codespell PATHS "${PROJECT_SOURCE_DIR}/.venv/bin" NO_DEFAULT_PATH)
  if(MOONHALO_CODESPELL)
    moonhalo_add_test(NAME style.spelling COMMAND "${MOONHALO_CODESPELL}" README.md CONTRIBUTING.md CHANGELOG.md dev
        docs engine ops io scripting examples configs cmake tests/README.md tests/FEATURES.md
        WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(style.spelling PROPERTIES LABELS quick)
  endif()
  set(format_check "")
  if(MOONHALO_CLANG_FORMAT AND MOONHALO_RUFF)
    set(format_check "${MOONHALO_CLANG_FORMAT}" "${PROJECT_BINARY_DIR}/formatted.txt" "${MOONHALO_RUFF}")
  endif()
  moonhalo_add_test(NAME style.tests COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/style/check_tests.py"
                                             "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME style.functions COMMAND Python3::Interpreter
                                                 "${PROJECT_SOURCE_DIR}/tests/style/check_functions.py"
                                                 "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME style.git COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/style/check_git.py"
                                           "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME style.state COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/style/check_state.py"
                                             "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME style.words COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/style/check_words.py"
                                             "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME style.reference COMMAND Python3::Interpreter -B
                                                 "${PROJECT_SOURCE_DIR}/docs/tools/reference.py" "${PROJECT_SOURCE_DIR}"
                                                 --check)
  moonhalo_add_test(NAME style.pages COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/docs/tools/check_pages.py"
                                             "${PROJECT_SOURCE_DIR}")
  foreach(kind pictures errors)
    moonhalo_add_test(NAME style.${kind} COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/docs/tools/${kind}.py"
                                                 --check)
  endforeach()
  moonhalo_add_test(NAME style.second_tries COMMAND Python3::Interpreter
                                                    "${PROJECT_SOURCE_DIR}/tests/support/second_tries.py" --self-test
                                                    "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME style.Y06_models_page COMMAND Python3::Interpreter -B
                                                   "${PROJECT_SOURCE_DIR}/tests/models/check_page.py"
                                                   "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME style.layers COMMAND Python3::Interpreter tests/style/check_layers.py "${PROJECT_SOURCE_DIR}"
           "${format_check}" COMMAND_EXPAND_LISTS WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME style.work_notes COMMAND Python3::Interpreter tests/style/check_work_notes.py
           "${PROJECT_SOURCE_DIR}" WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME gpu.Y20_first_stages COMMAND Python3::Interpreter
      "${PROJECT_SOURCE_DIR}/tests/gpu/check_first.py" "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME dev COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/dev/check_dev.py"
      "${PROJECT_SOURCE_DIR}")
  set_tests_properties(dev PROPERTIES LABELS quick)
  if(TARGET moonhalo_cli)
    moonhalo_add_test(NAME lua.Y10_help COMMAND Python3::Interpreter
                      "${PROJECT_SOURCE_DIR}/tests/scripting/check_help.py" $<TARGET_FILE:moonhalo_cli>
                      "${reference_json}")
    moonhalo_add_test(NAME lua.Y10_editor COMMAND Python3::Interpreter
                      "${PROJECT_SOURCE_DIR}/tests/scripting/check_editor.py" $<TARGET_FILE:moonhalo_cli>)
    set_tests_properties(lua.Y10_help lua.Y10_editor PROPERTIES LABELS quick ENVIRONMENT "${test_environment}")
    set_tests_properties(lua.Y10_editor PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  set_tests_properties(style style.features style.functions style.layers style.tests style.git style.state style.words
      style.reference style.pages style.pictures style.errors style.second_tries style.work_notes gpu.Y20_first_stages
      PROPERTIES LABELS quick)
endif()
