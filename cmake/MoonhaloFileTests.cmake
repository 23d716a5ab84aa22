# Files in the hands of netCDF4, xarray and h5py, which `./dev test` installs; skipped without them.
if(TARGET moonhalo_cli AND Python3_Interpreter_FOUND AND NOT MOONHALO_SANITIZE)
  moonhalo_add_test(NAME io.netcdf COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/netcdf/check_netcdf.py"
                                  $<TARGET_FILE:moonhalo_cli> "${PROJECT_SOURCE_DIR}/.venv-tests/bin/python"
                                  "${PROJECT_SOURCE_DIR}/tests/netcdf/write.lua")
  set_tests_properties(io.netcdf PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2 ENVIRONMENT "${test_environment}")
  moonhalo_add_test(NAME io.data COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/netcdf/check_data.py"
                                $<TARGET_FILE:moonhalo_cli> "${PROJECT_SOURCE_DIR}/.venv-tests/bin/python"
                                "${PROJECT_SOURCE_DIR}/tests/netcdf/load.lua")
  set_tests_properties(io.data PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2 ENVIRONMENT "${test_environment}")
  foreach(kind attributes npy)
    moonhalo_add_test(NAME io.${kind} COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/netcdf/check_${kind}.py"
                                 $<TARGET_FILE:moonhalo_cli> "${PROJECT_SOURCE_DIR}/.venv-tests/bin/python"
                                 "${PROJECT_SOURCE_DIR}/tests/netcdf/${kind}.lua")
    set_tests_properties(io.${kind} PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2 ENVIRONMENT "${test_environment}")
  endforeach()
  foreach(kind archives missing)
    moonhalo_add_test(NAME io.judges_${kind}
             COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/netcdf/check_judges.py" ${kind}
                     $<TARGET_FILE:moonhalo_cli>
                     "${PROJECT_SOURCE_DIR}/.venv-tests/bin/python" "${PROJECT_SOURCE_DIR}/tests/netcdf/judged.lua")
    set_tests_properties(io.judges_${kind} PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2
        ENVIRONMENT "${test_environment}")
  endforeach()
  # Files as other programs write them, also under the launcher of MPI, whose processes spin where cores are few.
  foreach(kind classic archives filters)
    moonhalo_add_test(LONG NAME io.formats_${kind}
             COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/formats/check_formats.py" ${kind}
                     $<TARGET_FILE:moonhalo_cli>
                     "${PROJECT_SOURCE_DIR}/.venv-tests/bin/python" "${PROJECT_SOURCE_DIR}/tests/formats/read.lua"
                     $<$<BOOL:${MPI_C_FOUND}>:${MPIEXEC_EXECUTABLE}> COMMAND_EXPAND_LISTS)
    set_tests_properties(io.formats_${kind} PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2
        ENVIRONMENT "${mpi_environment}")
  endforeach()
endif()

# Y03, Y04: files of Python's torch.save, by the Python that has LibTorch's wheel, and files for torch.load.
get_filename_component(wheel_python "${MOONHALO_TORCH_DIR}/../../../../bin/python3" ABSOLUTE)
if(TARGET moonhalo_cli AND EXISTS "${wheel_python}" AND NOT MOONHALO_SANITIZE)
  foreach(kind read written optimizers)
    moonhalo_add_test(NAME io.pytorch_${kind}
             COMMAND "${wheel_python}" "${PROJECT_SOURCE_DIR}/tests/pytorch/check_${kind}.py"
                     $<TARGET_FILE:moonhalo_cli> "${PROJECT_SOURCE_DIR}/tests/pytorch/${kind}.lua")
    set_tests_properties(io.pytorch_${kind} PROPERTIES PROCESSORS 2 ENVIRONMENT "${test_environment}")
  endforeach()
  # Y10: docs/from_pytorch.md.
  moonhalo_add_test(NAME docs.from_pytorch
           COMMAND "${wheel_python}" "${PROJECT_SOURCE_DIR}/tests/pytorch/check_pairs.py"
                   $<TARGET_FILE:moonhalo_cli> "${PROJECT_SOURCE_DIR}/tests/pytorch/pairs.lua")
  set_tests_properties(docs.from_pytorch PROPERTIES PROCESSORS 2 ENVIRONMENT "${test_environment}")
endif()
