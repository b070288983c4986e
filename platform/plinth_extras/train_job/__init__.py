"""Launcher of Kubeflow TrainJobs (trainer.kubeflow.org/v1alpha1): `training.launch.kind: trainjob`.

The module `launcher` derives the TrainJob of a run and its TrainingRuntime from the Job of the Kubernetes launcher. It
creates, polls and deletes the TrainJob; all else is the Kubernetes launcher's.

The pods are described by `training.launch.kubernetes`, as for `kind: kubernetes`.
"""

from plinth_extras.train_job.launcher import KIND

__all__ = ["KIND"]
