"""DSpark (DFlash): a block of tokens drafted in one pass by the checkpoint's own small stages."""
