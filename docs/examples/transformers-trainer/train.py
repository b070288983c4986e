"""Train the recipe's model with `transformers.Trainer` on Plinth's data order. `plinth run` starts it on each rank."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments, set_seed

import plinth.sdk
from plinth.sdk.callbacks import hugging_face
from plinth.sdk.data import OrderedSequences


def main() -> None:
    with plinth.sdk.run(packages=hugging_face.PACKAGES) as run:
        set_seed(run.config.seed)
        cpu = not torch.cuda.is_available()
        arguments = TrainingArguments(
            **hugging_face.arguments(run),
            learning_rate=run.config.optimizer.lr,
            lr_scheduler_type="cosine",
            use_cpu=cpu,
            ddp_backend="gloo" if cpu else "nccl",
        )
        trainer = Trainer(
            AutoModelForCausalLM.from_config(AutoConfig.for_model(**run.model)),
            arguments,
            data_collator=hugging_face.collate,
            train_dataset=OrderedSequences(run.config),
            callbacks=[hugging_face.TransformersCallback(run)],
        )
        trainer.train(resume_from_checkpoint=hugging_face.resumed(run))


if __name__ == "__main__":
    main()
