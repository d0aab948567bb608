"""Taking samples: warm and cold, in batches, paired; and the hardware peaks that bound them."""
