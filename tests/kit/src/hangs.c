/* A library whose handlers of the exit and of SIGABRT never return. To be loaded by LD_PRELOAD. */
#include <signal.h>
#include <unistd.h>

static void hang(int signal) {
    for (;;)
        pause();
}

__attribute__((constructor)) static void begin(void) {
    signal(SIGABRT, hang);
}

__attribute__((destructor)) static void end(void) {
    hang(0);
}
