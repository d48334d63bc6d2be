"""NoisyInstruct: training records (question, hint, distractors), their files, and the prompts made of them."""
