#include <fp8amp/fp8amp.h>

#include <cstdio>

int main() {
  try {
    fp8amp::dequantize({}, {});
  } catch (const fp8amp::Error& error) {  // the library's type is the program's type
    std::printf("%s\n%s\n", fp8amp::build_info().c_str(), error.what());
    return 0;
  }
  return 1;
}
