#!/bin/bash
# The corpus as an array job: sbatch infra/slurm/corpus.sh s3://BUCKET/corpus recipe.yaml
# Tasks that are killed, requeued or never started cost time only: the others do their share.
#SBATCH --job-name=corpus
#SBATCH --array=0-7
#SBATCH --cpus-per-task=16
#SBATCH --requeue
set -euo pipefail
export PLINTH_CACHE="${PLINTH_CACHE:-${TMPDIR:-/tmp}/plinth}"
exec plinth -w "$1" run -r "$2" --workers "${SLURM_CPUS_PER_TASK:-1}" \
  --part "$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN))/$SLURM_ARRAY_TASK_COUNT" "${@:3}"
