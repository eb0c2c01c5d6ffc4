"""What each engine writes: declarations, and the little code that no declaration can say."""
