/* base/thread.h -- a thread that no signal interrupts: the main thread handles those that people send. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts run(arg) with every signal blocked. 0, or the error number of pthread_create. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

#ifdef __cplusplus
}
#endif
#endif
