"""Settings that are left open (rates, layers, temperatures), chosen on spare examples by one loop for every learner."""
