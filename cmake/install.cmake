# `cmake --install`: the program with its model, man page and completions; the C library with its CMake package and
# pkg-config file once src/api is there. The installed tree can be moved.
include(CMakePackageConfigHelpers)

if(TARGET kvasir)
  install(TARGETS kvasir RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES models/tiny-gemma4-q8_0.gguf models/LICENSES.md DESTINATION ${CMAKE_INSTALL_DATADIR}/kvasir/models)
  if(NOT CMAKE_CROSSCOMPILING)
    # The program prints these from its flag table, so they are made from the program that is installed.
    set(generated ${CMAKE_BINARY_DIR}/generated/share)
    install(CODE "set(program \"$<TARGET_FILE:kvasir>\")\nset(generated \"${generated}\")")
    install(SCRIPT cmake/install_generated.cmake)
    install(FILES ${generated}/kvasir.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
    install(FILES ${generated}/kvasir.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
            RENAME kvasir OPTIONAL)
    install(FILES ${generated}/kvasir.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions
            RENAME _kvasir OPTIONAL)
    install(FILES ${generated}/kvasir.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d OPTIONAL)
  endif()
endif()
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(TARGET kvasir_shared)
  install(DIRECTORY include/kvasir DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(TARGETS kvasir_shared EXPORT kvasirTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS kvasir_static EXPORT kvasirStaticTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/kvasir)
  install(EXPORT kvasirTargets NAMESPACE kvasir:: DESTINATION ${package})
  install(EXPORT kvasirStaticTargets NAMESPACE kvasir:: DESTINATION ${package})
  configure_package_config_file(cmake/kvasirConfig.cmake.in ${CMAKE_BINARY_DIR}/generated/kvasirConfig.cmake
                                INSTALL_DESTINATION ${package})
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/kvasirConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/generated/kvasirConfig.cmake
          ${CMAKE_BINARY_DIR}/generated/kvasirConfigVersion.cmake DESTINATION ${package})

  file(RELATIVE_PATH to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  configure_file(cmake/kvasir.pc.in ${CMAKE_BINARY_DIR}/generated/kvasir.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/generated/kvasir.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
