/* Shows redis-server a wall clock that a test can step: the true one plus the microseconds that stand in a
   file, which the test writes while the server runs. To be loaded by LD_PRELOAD. */

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step;

__attribute__((constructor)) static void map_step(void) {
    int file = open(getenv("STEP_CLOCK"), O_RDONLY);
    step = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    if (step == MAP_FAILED) abort();
}

int gettimeofday(struct timeval *restrict shown, void *restrict zone) {
    struct timespec now;
    (void)zone;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    int64_t micros = now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000 + *step;
    shown->tv_sec = micros / 1000000;
    shown->tv_usec = micros % 1000000;
    return 0;
}
