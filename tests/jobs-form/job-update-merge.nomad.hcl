job "job-update-merge" {
  update {
    max_parallel = 2
    canary = 1
  }
  group "g" {
    update {
      min_healthy_time = "1s"
      canary = 0
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
