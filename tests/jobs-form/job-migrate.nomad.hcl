job "job-migrate" {
  migrate {
    max_parallel = 2
    health_check = "task_states"
    min_healthy_time = "5s"
    healthy_deadline = "3m"
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
