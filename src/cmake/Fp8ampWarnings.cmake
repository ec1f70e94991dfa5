# fp8amp_warnings: warnings for every target of this build, and the sanitizers of FP8AMP_SANITIZE.
add_library(fp8amp_warnings INTERFACE)
target_compile_options(fp8amp_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wno-psabi>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict> # GCC 12 sees faults in std::string's operator+
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${FP8AMP_WERROR}>>:-Werror>)

if(FP8AMP_SANITIZE)
  add_compile_options(-fsanitize=${FP8AMP_SANITIZE} -fno-omit-frame-pointer -g -O1 -UNDEBUG -D_GLIBCXX_ASSERTIONS)
  add_link_options(-fsanitize=${FP8AMP_SANITIZE})
  if(FP8AMP_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined) # a finding fails the test
  endif()
  message(STATUS "fp8amp: sanitizers ${FP8AMP_SANITIZE}")
endif()
