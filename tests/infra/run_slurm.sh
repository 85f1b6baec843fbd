#!/usr/bin/env bash
# Runs infra/slurm/ray.sbatch under a real Slurm controller on this machine: two nodes, one of them the head.
#   apt-get install slurm-wlm munge && PATH=.venv/bin:$PATH tests/infra/run_slurm.sh
# As root, since slurmd is. Starts munged, slurmctld and two slurmd of its own, with all their files in a scratch
# folder, and ends them again. Prints the job's log, and at last "ok".
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d /tmp/slurm-XXXX)
daemons=()
finish() {
  ((${#daemons[@]} == 0)) || kill "${daemons[@]}" 2>/dev/null || true
  wait || true
  rm -rf "$scratch"
}
trap finish EXIT

host=$(hostname -s)
address=$(hostname -I | cut -d' ' -f1)
cores=$(nproc)
cat >"$scratch/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host($address)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.socket
CredType=cred/munge
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool.%n
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.%n.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SchedulerParameters=sched_interval=2
NodeName=$host NodeHostname=$host NodeAddr=$address Port=16818 CPUs=$cores State=UNKNOWN
NodeName=second NodeHostname=$host NodeAddr=$address Port=16819 CPUs=$cores State=UNKNOWN
PartitionName=all Nodes=$host,second Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$scratch/slurm.conf
mkdir -p "$scratch/state" "$scratch/spool.$host" "$scratch/spool.second"

head -c 1024 /dev/urandom >"$scratch/munge.key"
chmod 700 "$scratch"
chmod 600 "$scratch/munge.key"
munged --foreground --force --key-file "$scratch/munge.key" --socket "$scratch/munge.socket" \
  --pid-file "$scratch/munge.pid" --seed-file "$scratch/munge.seed" --log-file "$scratch/munge.log" &
daemons+=($!)
until [[ -S $scratch/munge.socket ]]; do sleep 0.2; done
slurmctld -D -f "$SLURM_CONF" &
daemons+=($!)
for node in "$host" second; do
  slurmd -D -f "$SLURM_CONF" -N "$node" &
  daemons+=($!)
done
until (($(sinfo --noheader --states=idle --format=%D 2>/dev/null || echo 0) == 2)); do sleep 0.5; done
sinfo

cd "$root"
export PYTHONPATH=$root TMPDIR=/tmp
log=$scratch/job.log
sbatch --wait --nodes=2 --output="$log" infra/slurm/ray.sbatch \
  python tests/marin_dag/cluster_steps.py "$scratch/runs" "$scratch/marks" main spread || { cat "$log"; exit 1; }
cat "$log"
grep -q "main  done" "$log"
[[ -z $(squeue --noheader) ]]
echo ok
