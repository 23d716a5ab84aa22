# Read by ctest: the tests of operators on make-believe devices whose messages go by the double of NCCL, and the sweep
# over all operators of ATen on such devices; a part of both, or all of them where MOONHALO_TEST_ALL is set.
# In: ops_program, fuzz_program, skipped and long (filters), timeout, environment, in_folder.
set(all FALSE)
if(NOT "$ENV{MOONHALO_TEST_ALL}" STREQUAL "")
  set(all TRUE)
endif()

function(add_device_test name device more)
  add_test("${name}" "${in_folder}" ${ARGN})
  set_tests_properties("${name}" PROPERTIES TIMEOUT "${timeout}" LABELS device ENVIRONMENT
                       "${environment};MOONHALO_TEST_DEVICE=${device};TORCH_SHOW_CPP_STACKTRACES=0;${more}")
endfunction()

if(all)
  add_device_test(device.ops_long fake "" "${ops_program}" "--gtest_filter=${long}" --gtest_brief=1)
  foreach(part RANGE 0 7)
    add_device_test(device.ops_nccl_${part} fake_nccl "GTEST_TOTAL_SHARDS=8;GTEST_SHARD_INDEX=${part}" "${ops_program}"
                    "--gtest_filter=-${skipped}" --gtest_brief=1)
  endforeach()
else()
  add_device_test(device.ops_nccl fake_nccl "" "${ops_program}"
                  "--gtest_filter=Convolution.*:Reduce.*:Matmul.*:Softmax.*:Norm.*:Loss.*:-${skipped}" --gtest_brief=1)
endif()

# Every twentieth operator, or all.
set(parts 1)
if(all)
  foreach(part RANGE 2 20)
    list(APPEND parts ${part})
  endforeach()
endif()
foreach(part IN LISTS parts)
  add_device_test(device.aten_${part} fake "" "${fuzz_program}" --once --check --no-shrink --part ${part}/20)
endforeach()
