// A CUDA program that owes nothing to mps-manager: what it sees is the second opinion of the hardware scenario.
//
//   nvcc -arch=sm_90 -O2 -o client client.cu -lcuda
//
//   client info            one JSON line: every device with its UUID, multiprocessors, memory and priorities
//   client spin SECONDS    the same line, then small kernels on device 0 for so long, then {"launches": N}
//   client alloc MIB       the same line, then one synchronous allocation of so many MiB on device 0, held until
//                          stdin ends, so that a caller can look at it from outside
//   client fault [KIND [SECONDS]]
//                          the same line, then after so many seconds an error on device 0: a write through a null pointer (null), to an
//                          address that is nobody's (address) or misaligned (misaligned), a jump to nowhere (jump), trap, or a stack
//                          that overflows (stack)
//
// Multiprocessors are told twice: as CUDA's attribute, and as the number of different %smid that blocks of a
// kernel really ran on. Only the second is what a limit does; the first is what it says.
// Exit codes: 0 all well, 2 usage, 3 CUDA refused to start, 4 it failed later. A failure is a JSON line, too.
#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(int exit_code, const char* call, const char* name, int code) {
    printf("{\"pid\": %d, \"error\": {\"call\": \"%s\", \"code\": %d, \"name\": \"%s\"}}\n", (int)getpid(), call, code,
           name);
    fflush(stdout);
    // Not exit(): handlers of a broken CUDA may hang.
    _exit(exit_code);
}

int failure_code = 3;

void check(cudaError_t result, const char* call) {
    if (result != cudaSuccess) fail(failure_code, call, cudaGetErrorName(result), (int)result);
}

void check(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    const char* name = "unknown";
    cuGetErrorName(result, &name);
    fail(failure_code, call, name, (int)result);
}

#define CHECK(call) check(call, #call)

// Each block stays until the others had time to be placed, so that they fill every multiprocessor they may use.
__global__ void note_multiprocessor(unsigned* seen, long long cycles) {
    unsigned smid;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(smid));
    if (threadIdx.x == 0) seen[blockIdx.x] = smid;
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}

__global__ void small(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}

__global__ void write_through(int* nowhere) { *nowhere = 1; }

__global__ void trap() { asm volatile("trap;"); }

__global__ void jump(unsigned long long where) { reinterpret_cast<void (*)()>(where)(); }

__device__ __noinline__ int descend(int depth, volatile int* end) {
    volatile char frame[4096];
    frame[depth & 4095] = (char)depth;
    return *end == depth ? 0 : descend(depth + 1, end) + frame[depth & 4095];
}

__global__ void overflow_stack(int* end) { *end = descend(0, end) - 1; }

// Multiprocessors that blocks of one kernel really ran on.
int multiprocessors_used() {
    // Two blocks of 1024 threads fill a multiprocessor; 4096 of them fill any device many times over.
    constexpr unsigned blocks = 4096;
    unsigned* seen = nullptr;
    CHECK(cudaMalloc(&seen, blocks * sizeof(unsigned)));
    note_multiprocessor<<<blocks, 1024>>>(seen, 100000);
    CHECK(cudaDeviceSynchronize());
    std::vector<unsigned> host(blocks);
    CHECK(cudaMemcpy(host.data(), seen, blocks * sizeof(unsigned), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(seen));
    return (int)std::set<unsigned>(host.begin(), host.end()).size();
}

std::string uuid_of(CUdevice device) {
    CUuuid uuid;
    CHECK(cuDeviceGetUuid(&uuid, device));
    std::string text = "GPU-";
    for (int i = 0; i < 16; i++) {
        char byte[3];
        snprintf(byte, sizeof byte, "%02x", (unsigned char)uuid.bytes[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += byte;
    }
    return text;
}

// Prints what this process sees. The memory is read before anything is allocated.
void info() {
    CHECK(cuInit(0));
    int count = 0;
    CHECK(cuDeviceGetCount(&count));
    printf("{\"pid\": %d, \"devices\": [", (int)getpid());
    for (int ordinal = 0; ordinal < count; ordinal++) {
        CHECK(cudaSetDevice(ordinal));
        CHECK(cudaFree(nullptr));
        size_t free_bytes = 0, total_bytes = 0;
        CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
        int attribute = 0, least = 0, greatest = 0;
        CHECK(cudaDeviceGetAttribute(&attribute, cudaDevAttrMultiProcessorCount, ordinal));
        CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        CUdevice device;
        CHECK(cuDeviceGet(&device, ordinal));
        int mps = -1;
        if (cuDeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) != CUDA_SUCCESS) mps = -1;
        printf("%s{\"ordinal\": %d, \"uuid\": \"%s\", \"mps\": %d, \"sms\": %d, \"sms_used\": %d, \"memory_free\": %zu, "
               "\"memory_total\": %zu, \"priority_least\": %d, \"priority_greatest\": %d}",
               ordinal ? ", " : "", ordinal, uuid_of(device).c_str(), mps, attribute, multiprocessors_used(), free_bytes,
               total_bytes, least, greatest);
    }
    printf("]}\n");
    fflush(stdout);
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void spin(double seconds) {
    long launches = 0;
    const double end = now() + seconds;
    while (now() < end) {
        small<<<8, 128>>>(20000);
        CHECK(cudaDeviceSynchronize());
        launches++;
    }
    printf("{\"launches\": %ld}\n", launches);
}

void alloc(size_t mib) {
    CUdeviceptr memory = 0;
    CHECK(cuMemAlloc(&memory, mib << 20));
    printf("{\"allocated_mib\": %zu}\n", mib);
    fflush(stdout);
    while (getchar() != EOF) {
    }
    CHECK(cuMemFree(memory));
}

void fault(const std::string& kind) {
    int* own = nullptr;
    CHECK(cudaMalloc(&own, 4096));
    CHECK(cudaMemset(own, 0xff, 4096));
    if (kind == "null") write_through<<<1, 1>>>(nullptr);
    if (kind == "address") write_through<<<1, 1>>>(reinterpret_cast<int*>(0xdead0000ull));
    if (kind == "misaligned") write_through<<<1, 1>>>(reinterpret_cast<int*>(reinterpret_cast<char*>(own) + 1));
    if (kind == "jump") jump<<<1, 1>>>(0x1234560ull);
    if (kind == "trap") trap<<<1, 1>>>();
    if (kind == "stack") overflow_stack<<<1, 1>>>(own);
    CHECK(cudaDeviceSynchronize());
}

}  // namespace

int main(int argc, char** argv) {
    const std::string mode = argc > 1 ? argv[1] : "";
    const bool takes_number = mode == "spin" || mode == "alloc";
    const bool is_fault = mode == "fault" && argc <= 4;
    if (!is_fault && (argc != (takes_number ? 3 : 2) || (!takes_number && mode != "info"))) {
        fprintf(stderr, "usage: client info | spin SECONDS | alloc MIB | fault [KIND [SECONDS]]\n");
        return 2;
    }
    info();
    failure_code = 4;
    CHECK(cudaSetDevice(0));
    if (mode == "spin") spin(atof(argv[2]));
    if (mode == "alloc") alloc(strtoull(argv[2], nullptr, 10));
    if (mode == "fault") {
        if (argc > 3) usleep((useconds_t)(atof(argv[3]) * 1e6));
        fault(argc > 2 ? argv[2] : "null");
    }
    return 0;
}
