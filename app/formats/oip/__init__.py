"""The Open Inference Protocol over REST: reads infer requests and writes responses, in JSON and in binary."""
