/* What two cores of this machine can do at most; no MPI, no Python, nothing shared but what the job needs.

   `make limits` compiles and runs it.  Two processes, each bound to a core of its own, do
   together the least that a collective has to do:

   line        one word there and back: what a step of any protocol costs
   copies      each copies 64 MiB, by `rep movsb` (NumPy's way here) and by stores past the caches
   all-reduce  of 64 MiB: the other's half crosses, is added, and the sum crosses back
   all-gather  the own block copied, the other's fetched by one process_vm_readv: private arrays
               allow no less, and nobody may return before his own has been fetched
   face        one float32 of every 1024 B by one of them, as the axis-2 face of a 256^3 array,
               cold and again */
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 101, RING = 16, SEGMENT = 128 << 10 };
static const size_t LARGE = 64 << 20;
typedef struct { _Alignas(128) atomic_long v; } Word;
static struct {
  Word met[2], laid[2], summed[2], turn;
  struct { char *given; pid_t pid; } rank[2];
  double seconds[2][MOST];
  _Alignas(4096) char ring[2][RING * SEGMENT], tray[2][RING * SEGMENT];
} *shared;
static int me;
static long meetings, segments;
static char *given, *taken;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
static void await(Word *word, long value) {
  while (atomic_load_explicit(&word->v, memory_order_acquire) < value) _mm_pause();
}
static void tell(Word *word, long value) { atomic_store_explicit(&word->v, value, memory_order_release); }
static void meet(void) {
  tell(&shared->met[me], ++meetings);
  await(&shared->met[!me], meetings);
}

static void by_string(char *to, const char *from, size_t n) { __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n)::"memory"); }
static void past_caches(char *to, const char *from, size_t n) {
  for (size_t i = 0; i < n; i += 32) _mm256_stream_si256((void *)(to + i), _mm256_loadu_si256((void *)(from + i)));
  _mm_sfence();
}
static void sum(char *tray, char *to, const char *a, const char *b, size_t n) {
  for (size_t i = 0; i < n; i += 32) {
    __m256 s = _mm256_add_ps(_mm256_loadu_ps((void *)(a + i)), _mm256_loadu_ps((void *)(b + i)));
    _mm256_stream_ps((void *)(tray + i), s);
    _mm256_stream_ps((void *)(to + i), s);
  }
  _mm_sfence();
}

static void copy_string(size_t n) { by_string(taken, given, n); }
static void copy_past(size_t n) { past_caches(taken, given, n); }
static void allreduce(size_t n) {
  for (size_t at = 0; at < n; at += 2 * SEGMENT) {
    size_t slot = segments++ % RING * SEGMENT, mine = at + me * SEGMENT, theirs = at + !me * SEGMENT;
    past_caches(shared->ring[me] + slot, given + theirs, SEGMENT);
    tell(&shared->laid[me], segments), await(&shared->laid[!me], segments);
    sum(shared->tray[me] + slot, taken + mine, given + mine, shared->ring[!me] + slot, SEGMENT);
    tell(&shared->summed[me], segments), await(&shared->summed[!me], segments);
    past_caches(taken + theirs, shared->tray[!me] + slot, SEGMENT);
  }
}
static void allgather(size_t n) {
  struct iovec to = {taken + !me * n / 2, n / 2}, from = {shared->rank[!me].given, n / 2};
  memcpy(taken + me * n / 2, given, n / 2);
  if (process_vm_readv(shared->rank[!me].pid, &to, 1, &from, 1, 0) != (ssize_t)(n / 2)) perror("process_vm_readv"), exit(1);
  meet(); /* before that the other one may still be reading */
}
static void face(size_t n) {
  if (me) return;
  for (size_t i = 0; i < n / 1024; i++) ((float *)taken)[i] = *(float *)(given + 1024 * i);
}

static int order(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }
/* The median of the times of the slower process; `before` is not measured. */
static double median(void (*work)(size_t), size_t n, int times, void (*before)(size_t)) {
  for (int i = 0; i < times; i++) {
    if (before) before(LARGE);
    meet();
    double start = now();
    work(n);
    shared->seconds[me][i] = now() - start;
  }
  meet();
  double all[MOST];
  for (int i = 0; i < times; i++) all[i] = shared->seconds[0][i] > shared->seconds[1][i] ? shared->seconds[0][i] : shared->seconds[1][i];
  meet();
  qsort(all, times, sizeof *all, order);
  return all[times / 2];
}
static double line(int times) {
  double start = now();
  for (long i = 0; i < times; i++) {
    if (me) await(&shared->turn, 2 * i + 1), tell(&shared->turn, 2 * i + 2);
    else tell(&shared->turn, 2 * i + 1), await(&shared->turn, 2 * i + 2);
  }
  return (now() - start) / times;
}

/* The other one has ended: well, at the end of all, or nobody is left to meet. */
static void alone(int number) {
  int status;
  (void)number;
  if (wait(&status) < 0 || status) _exit(1);
}

int main(void) {
  shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return perror("mmap"), 1;
  signal(SIGCHLD, alone);
  pid_t other = fork();
  if (other < 0) return perror("fork"), 1;
  me = other == 0;
  if (me) prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* or Yama lets only the parent read */
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(me, &core);
  if (sched_setaffinity(0, sizeof core, &core)) return perror("two cores are needed"), 1;
  given = aligned_alloc(4096, LARGE), taken = aligned_alloc(4096, LARGE);
  madvise(given, LARGE, MADV_NOHUGEPAGE), madvise(taken, LARGE, MADV_NOHUGEPAGE); /* as NumPy's arrays below 4 MiB */
  for (size_t i = 0; i < LARGE / 4; i++) ((float *)given)[i] = me + 1;
  memset(taken, 0, LARGE);
  shared->rank[me].given = given, shared->rank[me].pid = getpid();
  meet();
  double there_and_back = line(20000);
  double string = median(copy_string, LARGE, 15, 0), past = median(copy_past, LARGE, 15, 0);
  double reduced = median(allreduce, LARGE, 15, 0);
  for (size_t i = 0; i < LARGE / 4; i++)
    if (((float *)taken)[i] != 3) return puts("wrong sums"), 1;
  double cold = median(face, LARGE, 9, copy_string), again = median(face, LARGE, 9, 0);
  if (!me) {
    printf("line there and back   %9.0f ns\n", there_and_back * 1e9);
    printf("copies of 64 MiB      %9.2f ms  rep movsb, %.2f past the caches\n", string * 1e3, past * 1e3);
    printf("all-reduce of 64 MiB  %9.2f ms  %.2f of the copies\n", reduced * 1e3, reduced / string);
    printf("face of 256 x 256     %9.1f us  cold, %.1f again; %.2f ns a line\n", cold * 1e6, again * 1e6, again / 65536 * 1e9);
    puts("all-gather, bytes of the result");
  }
  for (size_t n = 8 << 10; n <= 16 << 20; n *= 2) {
    double gathered = median(allgather, n, MOST, 0);
    if (!me) printf("%21zu %9.2f us\n", n, gathered * 1e6);
  }
  return 0;
}
