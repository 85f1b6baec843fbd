# Two v5litepod-256, for Kestrel.
s/@NAME@/v5litepod-256x2/
s/@SLICE@/v5litepod-256/
s/@SLICES@/2/
s/@MACHINES@/18/
s/@CPUS@/112/
s/@CHIPS@/4/
s/@RUNTIME@/v2-alpha-tpuv5-lite/
s/@CAPACITY@/reserved/
s/@REGION@/europe-west4/
s/@ZONE@/b/
