package executor_test

func beAgent(string) {}
