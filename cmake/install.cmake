# cmake --install: headers, libraries, the command, and CoterieConfig.cmake for find_package(Coterie).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(room_targets GLOBAL PROPERTY COTERIE_ROOM_TARGETS)
install(TARGETS ${room_targets} EXPORT CoterieTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT CoterieTargets NAMESPACE Coterie:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Coterie)
install(DIRECTORY coterie/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/coterie
        FILES_MATCHING PATTERN "*.hpp")
configure_package_config_file(cmake/CoterieConfig.cmake.in
  "${PROJECT_BINARY_DIR}/CoterieConfig.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Coterie)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/CoterieConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/CoterieConfig.cmake"
              "${PROJECT_BINARY_DIR}/CoterieConfigVersion.cmake"
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Coterie)
if(COTERIE_TORCH)
  install(FILES cmake/libtorch.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Coterie)
endif()
if(COTERIE_CLI)
  install(DIRECTORY demo/ DESTINATION ${CMAKE_INSTALL_DATADIR}/coterie/demo)
  install(TARGETS coterie RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
