tessera train own-questions training.curriculum=[{length:\ 2,\ steps:\ 20}] --output runs/q
