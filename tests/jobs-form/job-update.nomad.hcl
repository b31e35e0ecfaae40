job "job-update" {
  update {
    stagger = "20s"
    max_parallel = 3
    health_check = "task_states"
    min_healthy_time = "11s"
    healthy_deadline = "4m"
    progress_deadline = "9m"
    canary = 1
    auto_revert = true
    auto_promote = true
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
