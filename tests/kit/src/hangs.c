/* A library whose exit handler never returns. To be loaded by LD_PRELOAD. */
#include <unistd.h>

__attribute__((destructor)) static void hang(void) {
    for (;;)
        pause();
}
