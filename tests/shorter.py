"""Settings that make the quickstart a matter of seconds."""

TINY = (
    "--stages.sft.steps 3 --stages.reward.steps 3 --stages.ppo.iterations 3 --stages.ppo.batch_size 16 "
    "--stages.ppo.mini_batch_size 8 --stages.ppo.score_normalization.samples 8 --stages.ppo.evaluation.prompts 8 "
    "--stages.ppo.sampling.max_new_tokens 8 --stages.ppo.data.eval_rows 16"
)
SMALL_WORLD = (
    " --stages.sft.data.sources.world.rows 300 --stages.sft.data.eval_rows 16 --stages.reward.data.eval_rows 16 "
    "--stages.reward.data.sources.fit.rows 100 --stages.reward.data.sources.doubled.rows 100 "
    "--stages.reward.data.sources.mixed.rows 100 --stages.ppo.data.sources.world.rows 200 "
    "--stages.ppo.mixture.data.sources.world.rows 200"
)
