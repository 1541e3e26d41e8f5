# The tokenizer needs no libtorch: tests and fuzzers also build it alone.
set(COTERIE_TOKENIZER_SOURCES streaming_decoder.cpp tokenizer.cpp tokenizer_added.cpp tokenizer_bpe.cpp
    tokenizer_decoder.cpp tokenizer_json.cpp tokenizer_load.cpp tokenizer_pattern.cpp
    tokenizer_regex.cpp tokenizer_split.cpp tokenizer_unicode.cpp)
list(TRANSFORM COTERIE_TOKENIZER_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
set_source_files_properties(${COTERIE_TOKENIZER_SOURCES} DIRECTORY "${PROJECT_SOURCE_DIR}"
                            PROPERTIES SKIP_PRECOMPILE_HEADERS ON)

# Target coterie_tokenizer: the tokenizer alone, where PCRE2 and utf8proc are there.
function(coterie_tokenizer_alone)
  if(TARGET coterie_tokenizer)
    return()
  endif()
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(PCRE2 QUIET IMPORTED_TARGET GLOBAL libpcre2-8)
    pkg_check_modules(UTF8PROC QUIET IMPORTED_TARGET GLOBAL libutf8proc)
  endif()
  if(TARGET PkgConfig::PCRE2 AND TARGET PkgConfig::UTF8PROC)
    add_library(coterie_tokenizer STATIC EXCLUDE_FROM_ALL ${COTERIE_TOKENIZER_SOURCES})
    target_link_libraries(coterie_tokenizer PUBLIC coterie_base
                          PRIVATE coterie_flags PkgConfig::PCRE2 PkgConfig::UTF8PROC)
  endif()
endfunction()
