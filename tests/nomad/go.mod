module agentbin.test/nomad

go 1.26.0
