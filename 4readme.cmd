tessera train demo-mosaic training.steps=20 model.hidden_size=32 model.num_layers=2 model.num_heads=2 tokenizer.vocab_size=300 training.evaluate_sequences=4 --output runs/mine
tessera train demo-mosaic training.steps=30 model.hidden_size=32 model.num_layers=2 model.num_heads=2 tokenizer.vocab_size=300 training.evaluate_sequences=4 --output runs/mine --resume
python -c "open('book.txt','w').write('Mary put the rope on the shelf. '*40); open('a.txt','w').write('Once upon a time there was a king. '*9); open('b.txt','w').write('The queen ate a cake. '*9)"
tessera generate runs/mine --prompt "Once upon a time" --max-new-tokens 20
tessera eval runs/mine --context 1024 --plot loss-by-position.png --sequences 2
tessera check runs/mine
tessera inspect runs/mine --text book.txt --output page.html
tessera compare runs/mine runs/mine --plot curves.png
tessera info mosaic-v2-large --json
tessera train armt-tiny --output runs/armt
tessera memorize runs/armt book.txt --out book.memory
tessera ask runs/armt "Once upon a time" --memory book.memory
tessera memorize runs/mine a.txt b.txt --out books.memory
tessera memories forget books.memory a.txt
tessera ask runs/mine "Once upon" --memory books.memory --cite
tessera prompts runs/mine --many-shot banking77
tessera tasks
tessera train --help-recipe
