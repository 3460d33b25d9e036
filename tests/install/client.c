/* The smallest user of the C library. */
#include <kvasir/kvasir.h>
#include <stdio.h>

int main(void) {
  printf("kvasir %s\n", kvasir_version());
  return 0;
}
