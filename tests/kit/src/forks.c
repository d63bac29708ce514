/* Makes a program that knows nothing of it fork: at SIGUSR1 into a child that goes on, at SIGUSR2 into one
   that exits at once. To be loaded by LD_PRELOAD. */

#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void on_signal(int number) {
    if (fork() != 0) return;
    if (number == SIGUSR2) exit(0);
    /* Whatever becomes of the test, the child ends. */
    alarm(30);
    dprintf(STDOUT_FILENO, "\nholder: 0 forked %d\n", (int)getpid());
}

__attribute__((constructor)) static void install(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
}
