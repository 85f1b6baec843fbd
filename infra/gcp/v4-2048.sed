# One v4-2048, for the main run of Tootsie.
s/@NAME@/v4-2048/
s/@SLICE@/v4-2048/
s/@SLICES@/1/
s/@MACHINES@/17/
s/@CPUS@/240/
s/@CHIPS@/4/
s/@RUNTIME@/tpu-ubuntu2204-base/
s/@CAPACITY@/reserved/
s/@REGION@/us-central2/
s/@ZONE@/b/
