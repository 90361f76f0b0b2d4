"""Three moons (Memory Mosaics, section 5): predict the positions of moons whose motions are independent."""
