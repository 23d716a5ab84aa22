# Read by ctest: makes one test of each suite of the GoogleTest program `program`, named FOLDER.Suite or
# FOLDER.Cases/Suite. Per suite and not per case, because loading LibTorch costs a third of a second per process.
# In: program, folder, labels, environment, timeout. The list is kept beside the program until the program changes.
if(NOT EXISTS "${program}")
  add_test("${folder}.not_built" "${program}")
  return()
endif()
set(list_file "${program}.suites")
if("${program}" IS_NEWER_THAN "${list_file}")
  execute_process(COMMAND "${program}" --gtest_list_tests OUTPUT_VARIABLE text ERROR_VARIABLE error
                  RESULT_VARIABLE status TIMEOUT 120)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${program} --gtest_list_tests: ${status}\n${text}${error}")
  endif()
  string(REGEX MATCHALL "(^|\n)[^ \n]+\\.[^\n]*" lines "${text}")
  set(suites "")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^\n?([^ ]+)\\..*$" "\\1" suite "${line}")
    list(APPEND suites "${suite}")
  endforeach()
  file(WRITE "${list_file}" "${suites}")
endif()
file(READ "${list_file}" suites)
foreach(suite IN LISTS suites)
  add_test("${folder}.${suite}" "${program}" "--gtest_filter=${suite}.*")
  set(suite_labels "${labels}")
  # On make-believe devices, whatever MOONHALO_TEST_DEVICE says.
  if(suite MATCHES "^(Cases/)?(FakeDevice|StagedCommunicator|Nccl|Device(Communicator|Link|Refusals)|ScriptOnDevices|MeshDevice)")
    list(APPEND suite_labels device)
  endif()
  set_tests_properties("${folder}.${suite}" PROPERTIES TIMEOUT "${timeout}" LABELS "${suite_labels}"
                                                       ENVIRONMENT "${environment}")
endforeach()
