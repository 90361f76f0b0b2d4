tessera train tiny --output runs/one
tessera train tiny --output runs/one --resume training.steps=30
tessera train tiny training.learning_rate=1e-3 --output runs/two
tessera compare runs/one runs/two
tessera info runs/one
tessera train tiny --output runs/one --resume training.batch_size=3
tessera train tiny --output runs/one --resume training.log_every=3
tessera train tiny --output runs/one
tessera train tiny --output runs/one --overwrite training.report_to=[tensorboard]
ls runs/one
