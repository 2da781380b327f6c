"""GEM, the teacher: the Kunlun model, its training and its evaluation."""
