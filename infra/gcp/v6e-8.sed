# One v6e-8, for trials.
s/@NAME@/v6e-8/
s/@SLICE@/v6e-8/
s/@SLICES@/1/
s/@MACHINES@/17/
s/@CPUS@/180/
s/@CHIPS@/8/
s/@RUNTIME@/v2-alpha-tpuv6e/
s/@CAPACITY@/spot/
s/@REGION@/europe-west4/
s/@ZONE@/a/
