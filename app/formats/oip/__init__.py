"""The Open Inference Protocol over REST: reads infer requests and writes answers, in JSON and in binary."""
