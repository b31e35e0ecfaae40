job "task-resources-numa" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        cores = 1
        numa {
          affinity = "require"
          devices = ["nvidia/gpu"]
        }
        device "nvidia/gpu" {
        }
      }
    }
  }
}
