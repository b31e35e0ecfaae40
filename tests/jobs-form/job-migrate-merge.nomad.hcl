job "job-migrate-merge" {
  migrate {
    max_parallel = 2
  }
  group "g" {
    migrate {
      min_healthy_time = "5s"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
