job "task-resources-cores" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        cores = 1
        numa {
          affinity = "prefer"
        }
      }
    }
  }
}
