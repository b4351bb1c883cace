/* base/transports.h -- the transports that ranks communicate over, one row each: the choices of comm.kind,
 * what `treb doctor` lists, and which of them a training run may use derive from it.
 *
 *   TRANSPORT(name, needs, trains, help)
 *
 *   needs    ANY, or the part of the build without which there is no such transport: MPI, CUDA
 *   trains   a training run may use it; the others are for tests and plans
 *
 * comm/comm_*.c defines `const Transport transport_<name>` (comm/transport.h). */
#ifndef BASE_TRANSPORTS_H
#define BASE_TRANSPORTS_H

#define TRANSPORTS(TRANSPORT)                                                                      \
    TRANSPORT(self,    ANY,  true,  "one rank")                                                    \
    TRANSPORT(threads, ANY,  false, "ranks are threads, for tests")                                \
    TRANSPORT(mpi,     MPI,  true,  "processes that mpirun or srun started")                       \
    TRANSPORT(nccl,    CUDA, true,  "device memory over NCCL, the rest over mpi")                  \
    TRANSPORT(fake,    ANY,  false, "one rank of any world, sends nothing, for plans")

/* Values and help of comm.kind. */
#define TRANSPORT_CHOICE(name, needs, trains, help) "|" #name
#define TRANSPORT_CHOICES "auto" TRANSPORTS(TRANSPORT_CHOICE)
#define TRANSPORT_LINE(name, needs, trains, help) "; " #name ": " help
#define TRANSPORT_HELP \
    "auto: self for one rank, nccl where each rank has a GPU of its own, else mpi" TRANSPORTS(TRANSPORT_LINE)

#endif
